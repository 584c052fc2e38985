"""What pages are made of: HTML blocks, SVG charts, and a run folder read for a report.

Analyses build the sections of their reports from these; `cupola.report` and the web put them
together.
"""
