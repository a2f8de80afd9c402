"""First-party plugins. They have no privileges: each folder could be a distribution of its own."""

if __name__ != "tokloom.plugins":
    raise ImportError("import tokloom.plugins, not plugins: the folder is reached through the installed package")
