"""What things cost: side by side in one run, and nothing is timed whose result was not checked.

    nsm bench                          everything that concerns this machine, into results/bench/
    nsm bench --only mnist-step mc     some of it
    python -m nsm.bench                the same where tyro is not installed

`goals` says what is asked, `timing` how it is timed, `checks` what must hold before a time is printed, `peers` what an
NSM is compared with; `learning`, `inference`, `blankout` and `kernels` are the works, `scaling` the curves, `report`
the record.
"""
