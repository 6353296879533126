"""Active workloads: one file each, the plan, and the main of the load child. Measures, never judges.

The only workload so far is the verified matrix product. For the parent, which must not load torch: ``plan`` (requests),
``launch`` (command of the child), ``environment`` (its variables), ``units`` (formats by architecture), ``identity``
(the device that is visible), ``metrics`` (names and units of the figures), ``peak``. In the
child: ``main`` (the entry point), ``workload`` (the whole run), and below it ``families``, ``hashing`` and ``operands``
(numbers whose sums are exact), ``multiply`` (products per format) by ``calls`` (of torch, tried in order), ``sizing``
(shape and K), ``certify`` (proof of the first result), ``ring`` (the checked loop), ``locate`` (diagnosis of a wrong
result), ``faults`` and ``selftest`` (proof that a fault would be detected).
"""
