package throwaway

import "maps"

// Option changes the server's settings. Without one they are Postgres's own
// defaults, so commits are durable.
type Option func(settings map[string]string)

// WithSettings sets parameters of postgresql.conf.
func WithSettings(chosen map[string]string) Option {
	return func(settings map[string]string) { maps.Copy(settings, chosen) }
}

// WithoutDurability gives up what a crash of the machine, or Kill, would need,
// for speed.
func WithoutDurability() Option {
	return WithSettings(map[string]string{"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
}
