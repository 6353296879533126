"""The subcommands of ``nodevet``: one file each, with ``SUMMARY``, ``configure(parser)`` and ``run(arguments)``."""
