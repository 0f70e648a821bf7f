package redisrate

func rateKey(prefix, name string) string { return prefix + "money-rate:" + name }

// providerKey returns the key of what instances know of the provider. It is in the
// same slot of a Cluster as the rate of all calls, which one script reads and writes
// with it.
func providerKey(prefix, name string) string {
	return prefix + "money-provider:{" + rateKey(prefix, name) + "}"
}
