package obs

import "log/slog"

// FromSlog returns a Log that writes to the logger of another program. Nil
// writes nothing.
func FromSlog(l *slog.Logger) Log { return Log{l} }
