"""Observers. Each folder could be a distribution of its own."""

if __name__ != "tokloom.plugins.observe":
    raise ImportError("import tokloom.plugins.observe, not observe: it is reached through the installed package")
