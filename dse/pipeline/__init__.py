"""Running a mapping: a supervised process per lane, a pinned thread per set of cores.

``plan`` says what to run, ``supervise`` runs it, ``measure`` compares several plans.  In the
lane's process: ``lane`` (requests), ``runner`` (threads and hand-overs), ``engine`` (the runtime),
``affinity`` (masks read back from every thread).
"""
