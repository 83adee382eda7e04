"""What tests build their small, real worlds from: wheels, locks, a server that misbehaves."""
