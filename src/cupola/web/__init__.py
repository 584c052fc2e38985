"""The coordinator's web application: studies set up, sites invited, runs watched, results read.

    cupola web            # or, in Python: cupola.web.app.make_app(Settings(folder))

Pages are made on this machine, and nothing is loaded from another host. What runs a study stands
behind `launch.Launcher`; the one that is here simulates all sites in a process of its own.
"""
