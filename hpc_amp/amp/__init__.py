"""Mixed precision on native PyTorch: one precision policy and one loss scaler for everything."""
