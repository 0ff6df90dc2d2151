"""The experiments of published papers, a folder each: recipes, and the measures and figures that only they have."""
