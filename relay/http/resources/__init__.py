"""What the control plane offers: a module for each resource, whose `register` declares its calls.

A resource stands on the framework beside this folder (`routing.py`, `operations.py`, `gate` …);
`app.py` stands on the resources and mounts them.
"""
