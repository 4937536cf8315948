"""The network lab: ranks in network namespaces, with a shaped rate, a round-trip time and a share of a core.

    dtprof job ddp --ranks 2 --lab rate=1gbit,rtt=2ms,cpu=50%,rate.1=200mbit

``spec`` says what is asked, ``network`` makes it, ``relay`` is the switch that delays, ``cgroups`` limits cores,
``processes`` runs the ranks, ``keeper`` takes everything down whatever happens. docs/lab.md has the picture and the limits.
"""
