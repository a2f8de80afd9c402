"""Speculators. Each folder could be a distribution of its own."""

if __name__ != "tokloom.plugins.spec":
    raise ImportError("import tokloom.plugins.spec, not spec: the folder is reached through the installed package")
