"""The documentation site: Zensical builds it, mike keeps its versions on a branch."""
