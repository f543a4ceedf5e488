"""LSTF, long sequence time-series forecasting: ETT, ECL and Weather with the protocol of Informer."""
