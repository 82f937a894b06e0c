"""Import: result files of other programs, as a results directory of ours."""
