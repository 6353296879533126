"""Active workloads: one file each, the plan, and the main of the load child. Measures, never judges.

There is one workload so far, the verified matrix product. For the parent, which must not load torch: ``plan`` (what
to run), ``launch`` (how to start the child), ``metrics`` (names and units of the figures), ``peak``. In the child:
``child`` (the main), ``workload`` (the whole), and below it ``families``, ``hashing`` and ``operands`` (numbers whose
sums are exact), ``multiply`` (products per format), ``certify`` (proof of the first result), ``ring`` (the checked
loop), ``locate`` (what is told of a wrong result), ``faults`` and ``selftest`` (proof that one would be seen).
"""
