package throwaway

// At begins with a port that may not be free.
func At(port int) Option { return func(s *Server) { s.port = port } }
