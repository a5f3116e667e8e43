"""Optional parts: what each declares, and which are installed. Nothing here names one of them."""
