"""All HTML: the shop's pages, the sandbox's checkout and the docs. Pages call the API in the same process."""
