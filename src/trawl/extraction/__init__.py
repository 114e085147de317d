"""From bytes to a Document. No network, no clock."""
