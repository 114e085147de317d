"""What outlives a call: one SQLite file for every process of this user, and what is kept in it."""
