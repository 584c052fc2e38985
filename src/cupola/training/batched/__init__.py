"""The task 'train' for many sites in one computation; `choose` says which form is taken when."""
