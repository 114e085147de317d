"""What stands between the text of a page and the model or terminal that reads it."""
