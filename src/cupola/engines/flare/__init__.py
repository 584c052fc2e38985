"""Real sites over NVIDIA FLARE: mutual TLS, roles, audit. Sites run Cupola's own executor alone.

Start-up kits (`provision`, `policy`), processes (`launch`, `executor`, `controller`), jobs without
code (`jobs`), and how a plan is handed in and followed (`submit`). nvflare is imported only where
it is used: the rest of Cupola does without it.
"""
