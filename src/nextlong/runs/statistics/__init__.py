"""Statistics: a data set in numbers, and the warnings that follow from them."""
