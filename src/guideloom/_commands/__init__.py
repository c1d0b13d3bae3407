"""The commands that look at data sets, check and mend them, one module each; ``guideloom.cli`` puts them together."""
