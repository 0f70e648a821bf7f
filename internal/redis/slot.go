package redis

import "strings"

// Slot returns the cluster slot of a key: CRC16 (XMODEM) of its hash tag, which is
// the first {…} that is not empty, or of the whole key.
func Slot(key string) uint16 {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, closed := strings.Cut(after, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}
