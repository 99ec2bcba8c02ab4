package throwaway

import "maps"

// Option changes how the server is made. Without one its settings are Postgres's
// own defaults, so commits are durable.
type Option func(*Server)

// WithSettings sets parameters of postgresql.conf.
func WithSettings(chosen map[string]string) Option {
	return func(s *Server) { maps.Copy(s.settings, chosen) }
}

// WithoutDurability gives up what a crash of the machine, or Kill, would need,
// for speed.
func WithoutDurability() Option {
	return WithSettings(map[string]string{"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
}

// WithEnvironment adds variables, NAME=value, to the server's environment.
func WithEnvironment(variables ...string) Option {
	return func(s *Server) { s.environment = append(s.environment, variables...) }
}

// In keeps the data below that folder, which the server's owner must be able to
// reach, instead of the one for temporary files.
func In(folder string) Option {
	return func(s *Server) { s.folder = folder }
}

// Following makes a standby of a running server, from a copy of its data as
// they are now. It follows its primary until SQL promotes it.
func Following(primary *Server) Option {
	return func(s *Server) { s.primary = primary }
}
