"""How good is it: scores of translations, with signatures that make them comparable."""
