"""The suites: each is a function of a lab that measures one area and selects its peers."""
