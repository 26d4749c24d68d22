"""The lab of credit: no method needs it. Processes with exact advantages, how right credit is, and pictures of it.

:mod:`~turncredit.credit.lab.synthetic`, :mod:`~turncredit.credit.lab.fidelity`, :mod:`~turncredit.credit.lab.learning`
(whether it teaches), :mod:`~turncredit.credit.lab.viz`.
"""
