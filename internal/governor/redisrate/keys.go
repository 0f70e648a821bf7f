package redisrate

// rateKey returns the key of a rate.
func rateKey(prefix, name string) string { return prefix + "money-rate:" + name }
