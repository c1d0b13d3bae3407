"""The commands that check and mend data sets, one module each; ``guideloom.cli`` puts them together."""
