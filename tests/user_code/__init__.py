"""Methods as a user of the library writes them: one file each, no file of the library touched."""
