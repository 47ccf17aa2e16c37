"""Every interface is a view of one BatchEnv; none of them holds dynamics of its own."""
