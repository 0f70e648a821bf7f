package redisrate

// rateKey is where a rate is kept.
func rateKey(prefix, name string) string { return prefix + "money-rate:" + name }
