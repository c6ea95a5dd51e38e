"""Images from clients: fetched, decoded and bounded, with nothing of their origin trusted."""
