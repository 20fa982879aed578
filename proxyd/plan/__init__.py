"""What a change of rules means: what each frontend has before and after it, by Service. Pure."""
