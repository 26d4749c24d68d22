"""The library's benchmarks as `turncredit train` knows them: suite, settings and flags of each."""
