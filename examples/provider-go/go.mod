module provider

go 1.26.0
