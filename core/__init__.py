"""The microkernel: hooks, catalog, profiles, composition, the step loop and sampling."""

if __name__ != "tokloom.core":
    raise ImportError("import tokloom.core, not core: the folder is reached through the installed package")
