"""Methods: which documents make one long sequence, in what order. One file a method, one function from neighbours to drafts."""
