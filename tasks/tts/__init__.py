"""TTS: text to speech, LJSpeech with the protocol of fairseq."""
