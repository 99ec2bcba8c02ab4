// Package config reads the YAML file that tells a drainer which providers it
// serves and how.
//
//	bytes ──parse──▶ tree ──resolve secrets──▶ tree ──decode, validate──▶ Config
//
// Reading is strict and goes on after a mistake, so that one run reports all
// of them, each with file, line and column. Only an adapter understands its
// own blocks; they are decoded by it, while the file is being validated.
package config
