"""What several tests share: toy suites and models, independent references, programs that run beside a test."""
