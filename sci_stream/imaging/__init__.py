"""From reconstructed mosaics to pictures: demosaicing, tone mapping and rendering."""
