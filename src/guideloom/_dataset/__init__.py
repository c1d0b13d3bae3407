"""The objects a user holds: storages, their readers, and views of them as data sets."""
