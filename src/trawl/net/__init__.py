"""Everything that leaves the machine: the guard, the dialer, the HTTP client, the browser and its proxy."""
